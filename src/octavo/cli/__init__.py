"""The command line: ``octavo`` and one file for each verb. Nothing heavy is imported before a verb runs."""
