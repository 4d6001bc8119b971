"""The words, templates and style that HTML pages of foqs share: the report of Spark, and pages that a host serves."""
