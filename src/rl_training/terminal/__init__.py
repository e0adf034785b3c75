"""The terminal: streams of text that end no run, and progress bars."""
