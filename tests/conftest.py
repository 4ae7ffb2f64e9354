"""Of all tests: the plugin under test is only ever loaded through its entry point."""
