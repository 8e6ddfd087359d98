"""How algorithms scale with trainers on one host, with dense steps and links emulated."""
