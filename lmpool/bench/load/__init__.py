"""The load client: plays a trace against an endpoint, and says what came when."""
