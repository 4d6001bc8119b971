"""What is wrong with a deployment, and how to mend it: looks at everything, changes nothing."""
