"""How jobs are run: one module for each way, all behind the same small protocol."""
