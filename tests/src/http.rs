//! Small HTTP servers on loopback: one that answers with a text, and [`ApiServer`].

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub use crate::apiserver::ApiServer;

/// A request of a client.
#[derive(Debug, Clone)]
pub struct Request {
    /// GET, as a rule.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// Empty, as a rule.
    pub body: Vec<u8>,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Request> {
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|length| *length > 0).map(|_| line.trim_end().to_owned())
        };
        let first = line()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = BTreeMap::new();
        while let Some((name, value)) = line()?.split_once(':') {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Request { method, target, body, headers })
    }

    /// A parameter of the query.
    pub fn query(&self, key: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }
}

/// Serves each connection with one request in a thread of its own, until the test ends.
pub(crate) fn serve(handler: impl Fn(Request, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    serve_at("127.0.0.1:0".parse().unwrap(), Box::new(handler))
}

/// The function that answers a request on its connection.
pub type Handler = Box<dyn Fn(Request, TcpStream) + Send + Sync>;

/// As [`serve`], at this address of the current namespace.
pub fn serve_at(address: SocketAddr, handler: Handler) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || {
                let stream = stream.unwrap();
                if let Some(request) = Request::read(&stream) {
                    handler(request, stream);
                }
            });
        }
    });
    address
}

/// Answers each request with these bytes as they are, until the test ends.
pub fn scripted(say: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    serve(move |request, mut stream| {
        let _ = stream.write_all(&say(&request));
    })
}

/// A whole answer, after which the connection is closed. That the client has gone is fine.
pub fn answer(mut stream: &TcpStream, status: u16, headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// The answer of a [`TextServer`].
#[derive(Debug, Clone)]
pub struct Text {
    /// The status code that each answer has.
    pub status: u16,
    /// Whole lines, `NAME: VALUE\r\n`.
    pub headers: String,
    /// The content that each answer has.
    pub body: Vec<u8>,
}

/// Answers every request with the same text; with 304 when it has an ETag that the client knows.
#[derive(Debug)]
pub struct TextServer {
    address: SocketAddr,
    shared: Arc<Mutex<(Text, Vec<Request>)>>,
}

impl TextServer {
    /// Starts a server with this body.
    pub fn start(body: &str) -> Self {
        let text = Text { status: 200, headers: String::new(), body: body.as_bytes().to_vec() };
        let shared = Arc::new(Mutex::new((text, Vec::new())));
        let state = Arc::clone(&shared);
        let address = serve(move |request, stream| {
            let mut state = state.lock().unwrap();
            let known = request.headers.get("if-none-match").cloned();
            state.1.push(request);
            let text = state.0.clone();
            drop(state);
            let known = known.is_some_and(|tag| text.headers.contains(&format!("ETag: {tag}\r\n")));
            if known {
                answer(&stream, 304, "", b"");
            } else {
                answer(&stream, text.status, &text.headers, &text.body);
            }
        });
        TextServer { address, shared }
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the text.
    pub fn url(&self) -> String {
        format!("http://{}/pods", self.address)
    }

    /// Says something else from now on.
    pub fn say(&self, status: u16, headers: &str, body: &[u8]) {
        self.shared.lock().unwrap().0 = Text { status, headers: headers.to_owned(), body: body.to_vec() };
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().unwrap().1.clone()
    }
}
