"""Recipe frontend: edit events in, execution recipes out (design §4)."""
