"""jobd: a durable job daemon in one file."""

__version__ = "0.1.0.dev0"
