//! TLS in front of the servers of [`crate::http`]: a certificate authority of the test's own,
//! certificates by it, and a door that speaks TLS and passes on what it hears.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// A certificate authority. Its files go with it.
#[derive(Debug)]
pub struct Authority {
    dir: tempfile::TempDir,
}

/// A certificate, and its key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate's file, in PEM.
    pub certificate: PathBuf,
    /// The key's file, in PEM.
    pub key: PathBuf,
}

impl Authority {
    /// Makes one, by the program openssl.
    #[allow(clippy::new_without_default)] // it starts processes
    pub fn new() -> Self {
        let authority = Authority { dir: tempfile::tempdir().unwrap() };
        authority.file(
            "config",
            "[req]\ndistinguished_name = name\nx509_extensions = authority\n[name]\n\
             [authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign\n\
             subjectKeyIdentifier = hash\n",
        );
        // Two of one name would be told apart by their keys only, with another error.
        let name = crate::unique("authority");
        authority.openssl(&format!(
            "req -x509 -config config -days 2 -subj /CN={name} -keyout ca.key -out ca.pem -nodes"
        ));
        authority
    }

    /// The authority's certificate, in PEM.
    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for these names, as `IP:127.0.0.1` or `DNS:api.example`; good for servers
    /// and for clients.
    pub fn issue(&self, names: &str) -> Identity {
        self.issue_for(names, 2)
    }

    /// As [`Authority::issue`], for so many days from now; with -1 it has expired.
    pub fn issue_for(&self, names: &str, days: i32) -> Identity {
        let stem = crate::unique("identity");
        let extensions = format!(
            "basicConstraints = CA:FALSE\nsubjectAltName = {names}\nextendedKeyUsage = serverAuth,clientAuth\n"
        );
        self.file(&format!("{stem}.ext"), &extensions);
        self.openssl(&format!(
            "req -new -config config -subj /CN={stem} -keyout {stem}.key -out {stem}.csr -nodes"
        ));
        let sign = format!(
            "x509 -req -in {stem}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -extfile {stem}.ext -out {stem}.pem"
        );
        self.run(&sign);
        let at = |ending: &str| self.dir.path().join(format!("{stem}.{ending}"));
        Identity { certificate: at("pem"), key: at("key") }
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// A command that makes a key.
    fn openssl(&self, line: &str) {
        self.run(&format!("{line} -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"));
    }

    fn run(&self, line: &str) {
        let output =
            Command::new("openssl").args(line.split(' ')).current_dir(self.dir.path()).output().unwrap();
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Listens on loopback as `identity` and passes each connection's request on to `behind`, until
/// the test ends. With `clients`, only for those who have a certificate of this authority.
pub fn door(behind: SocketAddr, identity: &Identity, clients: Option<&Authority>) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(authority.certificate()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let certificate = CertificateDer::from_pem_file(&identity.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                // Whoever doesn't trust us hangs up, which is what some tests want.
                let _ = pass_on(StreamOwned::new(connection, stream.unwrap()), behind);
            });
        }
    });
    address
}

/// One request without a body, and the answer until its end.
fn pass_on(mut client: StreamOwned<ServerConnection, TcpStream>, behind: SocketAddr) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(());
        }
        request.push(byte[0]);
    }
    let mut server = TcpStream::connect(behind)?;
    server.write_all(&request)?;
    let mut chunk = [0; 4096];
    loop {
        match server.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                client.write_all(&chunk[..length])?;
                client.flush()?;
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    client.conn.send_close_notify();
    client.flush()
}

/// A file's text in base64, as kubeconfigs have it.
pub fn base64(path: &Path) -> String {
    let output = Command::new("openssl").args(["base64", "-A", "-in"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
