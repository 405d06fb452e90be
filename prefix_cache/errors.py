"""What the cache refuses or reports, as one tree.

* PrefixCacheError
  * ConfigError      refused at construction; the message says what to change
  * StepError        a call that breaks the protocol: counts that do not sum, a handle consumed twice, ...
  * AbsentRow        a hit over a required row that was never written
  * CacheTimeout     a wait that names what it waited for
  * CacheFailed      sticky: an earlier operation failed, the cause is chained; every later call raises it
"""


class PrefixCacheError(RuntimeError):
    pass


class ConfigError(PrefixCacheError, ValueError):
    pass


class StepError(PrefixCacheError):
    pass


class AbsentRow(PrefixCacheError):
    pass


class CacheTimeout(PrefixCacheError):
    pass


class CacheFailed(PrefixCacheError):
    pass
