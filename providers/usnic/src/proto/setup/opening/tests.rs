//! What a client makes of what it hears.
