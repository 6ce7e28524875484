"""How fast jobd is on this machine, measured on servers of its own."""
