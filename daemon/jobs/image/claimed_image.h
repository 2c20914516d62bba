// What of a runtime's image its process has: the rest was on its way to the
// process, or from it, when the daemon ended, and is asked for anew.
//
// Plain functions of values.
#pragma once

#include "daemon/wire/job_messages.h"
#include "runtime/tensor/runtime_image.h"

namespace terrace {

RuntimeImage ClaimedOf(RuntimeImage image, const ClaimRequest& claim);

}  // namespace terrace
