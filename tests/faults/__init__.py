"""The promises of the log, shown on a disk that forgets, on damaged bytes and in processes that die."""
