"""Writers of records: the publisher, topic provisioning, submission, admission's rules."""
