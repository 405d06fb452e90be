"""Accuracy: the same words, the same voice, the same answers, with the cache and without.

`normalise` and `wer` compare texts, `recognise` hears them from audio, `similarity` compares voices, `choice` reads
multiple-choice replies, `bootstrap` and `decision` say what the differences between arms are worth. Nothing here
starts a server, and nothing downloads a model.
"""
