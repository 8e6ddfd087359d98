"""The commands besides training: plan, forecast, recovery plan, doctor, score, export, inspect."""
