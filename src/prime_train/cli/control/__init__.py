"""Commands to a run that is supervised: each is a request with an id, and the supervisor's events are its answer."""
