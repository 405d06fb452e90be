HIDDEN_KEY = "__hidden_states__"
