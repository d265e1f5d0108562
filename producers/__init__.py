"""What puts records on topics: the publisher, topic provisioning, submission, admission's rules."""
