use super::*;
use crate::net::receive::Inbox;
use crate::net::socket::{Wanted, plain};
