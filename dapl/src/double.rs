//! Placeholder for the double of a provider.
