#include "base/version.h"

const char up_version[] = UPIPE_VERSION;
