//! What a server makes of what it hears, and what it keeps.
