//! Messages between nodes: their encoding, the links that carry them, and their checks on arrival.

pub(crate) mod incoming;
pub(crate) mod links;
pub(crate) mod message;
pub(crate) mod peers;
