"""The IR as text: printed, parsed, compared, drawn."""
