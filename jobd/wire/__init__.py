"""One module per contract: Structs only, decoded once at the edge, without behaviour."""
