//! The command `cnimble`.
fn main() {}
