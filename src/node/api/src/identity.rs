//! The certificate and key by which a client identifies itself to a server.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use crate::http::certificates;

/// A client's certificate chain and key in PEM. They often come from two files, of which one may have been replaced
/// without the other.
#[derive(Clone, PartialEq)]
pub struct ClientIdentity {
    pub chain: Vec<u8>,
    pub key: Vec<u8>,
    /// Where the chain comes from, for messages: the path of its file, for example.
    pub chain_source: String,
    /// Where the key comes from, for messages.
    pub key_source: String,
}

impl ClientIdentity {
    /// Checks that chain and key are usable, and that the key belongs to the first certificate. Fails with a sentence
    /// that names the sources.
    pub fn check(&self) -> Result<(), String> {
        self.certified_key(&rustls::crypto::ring::default_provider()).map(drop)
    }

    /// Parses chain and key. Fails as [`Self::check`] does.
    pub(crate) fn certified_key(&self, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
        let ClientIdentity { chain_source, key_source, .. } = self;
        let chain = certificates(&self.chain).map_err(|why| format!("{chain_source}: {why}"))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|err| match err {
            pem::Error::NoItemsFound => format!("{key_source}: there is no private key in it"),
            err => format!("{key_source}: {err}"),
        })?;
        CertifiedKey::from_der(chain, key, provider).map_err(|err| match err {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                format!("the key in {key_source} does not belong to the certificate in {chain_source}")
            }
            err => {
                format!("the certificate in {chain_source} and the key in {key_source} can't be used: {err}")
            }
        })
    }
}
