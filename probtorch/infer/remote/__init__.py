"""Work done in other processes and on other machines, through any `concurrent.futures.Executor`."""
