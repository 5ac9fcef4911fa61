"""What a conversation is: events, chunks, header, log, seed boundary, repair."""
