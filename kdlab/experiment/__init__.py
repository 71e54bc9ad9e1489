"""What is trained and with what: the spec, the protocol of methods, and what they are given."""
