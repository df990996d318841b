"""Tests of the log's promises on a disk that loses unsynced data, on damaged bytes, and in processes that die."""
