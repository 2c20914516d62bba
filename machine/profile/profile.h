// What makes a profile the profile of this machine.
#pragma once

#include <string>

#include "terrace/machine.h"

namespace terrace {

// Name, model and serial: another drive in the same place has another.
std::string IdentityOf(const DriveReport& drive);

}  // namespace terrace
