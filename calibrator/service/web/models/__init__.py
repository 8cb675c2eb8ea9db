"""What the API takes and gives, one module per resource."""
