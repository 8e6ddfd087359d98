"""The commands besides training: plan, recovery plan, doctor, score, export, inspect."""
