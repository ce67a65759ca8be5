//! The TLS of one port, which may have two faces: a certificate for clients, and the cluster's for nodes. A
//! node asks for the name [`CLUSTER_NAME`] in its first message, by which the port knows which to show.

use tokio::net::TcpStream;

use crate::accept::{AcceptError, begins_with_tls, bounded, handshake, refuse};
use crate::cluster::CLUSTER_NAME;
use crate::server::ServerTls;
use crate::wire::Wire;

/// TLS of a port; without any it is plain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortTls {
    /// For clients.
    pub clients: Option<ServerTls>,
    /// For nodes of the cluster.
    pub nodes: Option<ServerTls>,
    /// With `nodes` and without `clients`: whether clients are served without TLS.
    pub plain_clients: bool,
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Accepted {
    /// Its bytes.
    pub wire: Wire,
    /// Whether the other end has proven to be a node of the cluster.
    pub is_node: bool,
}

impl PortTls {
    /// Whether clients need `https`.
    pub fn is_https(&self) -> bool {
        self.clients.is_some() || (self.nodes.is_some() && !self.plain_clients)
    }

    /// Does the handshake, if any, with a client that has connected.
    ///
    /// # Errors
    /// If the client does not complete it in time, shows no certificate where one is required, or speaks
    /// something else.
    pub async fn accept(&self, stream: TcpStream) -> Result<Accepted, AcceptError> {
        // The commonest port pays nothing.
        if self.clients.is_none() && self.nodes.is_none() {
            return Ok(Accepted { wire: Wire::Plain(stream), is_node: false });
        }
        bounded(async {
            if !begins_with_tls(&stream).await? {
                if self.is_https() {
                    return Err(refuse(stream).await);
                }
                return Ok(Accepted { wire: Wire::Plain(stream), is_node: false });
            }
            let mut is_node = false;
            let stream = handshake(stream, |name| {
                let (shown, nodes) = self.shown(name);
                is_node = nodes;
                shown.current()
            });
            let wire = Wire::Tls(Box::new(stream.await?));
            Ok(Accepted { wire, is_node })
        })
        .await
    }

    /// What a client that asks for `name` is shown, and whether that is for nodes only.
    fn shown(&self, name: Option<&str>) -> (&ServerTls, bool) {
        match (&self.clients, &self.nodes) {
            (Some(clients), None) => (clients, false),
            (Some(clients), Some(_)) if name != Some(CLUSTER_NAME) => (clients, false),
            (_, Some(nodes)) => (nodes, true),
            (None, None) => unreachable!("a port without TLS does no handshake"),
        }
    }
}
