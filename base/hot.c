#include "base/hot.h"

_Thread_local int hot_depth;
