"""What the commands beside training do: plan, forecast, recovery plan, doctor, score, export, inspect."""
