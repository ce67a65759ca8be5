pub async fn serve(_l: tokio::net::TcpListener, _a: skein_router::app::App, s: impl Future<Output = ()>) -> Result<(), std::io::Error> { s.await; Ok(()) }
