"""Other systems at the same job as TranLogs: one adapter a module, the job that all of them save, and the process that dies."""
