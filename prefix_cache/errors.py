"""What the cache refuses or reports, as one tree.

* PrefixCacheError
  * ConfigError             refused at construction; the message says what to change
    * BlockSizeMismatch     the engine's blocks have another size
    * HybridLayout          several KV groups, or layers that do not keep every token
    * UnalignedMatching     prefixes match at less than whole blocks
    * SpeculativeDecoding   rows of rejected tokens would be stored
    * ContextParallelism    no rank has every token's row
    * KVTransfer            KV blocks may arrive without a forward here
  * StepError               a call that breaks the protocol: counts that do not sum, a handle consumed twice, ...
  * AbsentRow               a hit over a required row that was never written
  * CacheTimeout            a wait that names what it waited for
  * CacheFailed             sticky: an earlier operation failed, the cause is chained; every later call raises it
"""


class PrefixCacheError(RuntimeError):
    pass


class ConfigError(PrefixCacheError, ValueError):
    pass


class BlockSizeMismatch(ConfigError):
    pass


class HybridLayout(ConfigError):
    pass


class UnalignedMatching(ConfigError):
    pass


class SpeculativeDecoding(ConfigError):
    pass


class ContextParallelism(ConfigError):
    pass


class KVTransfer(ConfigError):
    pass


class StepError(PrefixCacheError):
    pass


class AbsentRow(PrefixCacheError):
    pass


class CacheTimeout(PrefixCacheError):
    pass


class CacheFailed(PrefixCacheError):
    pass
