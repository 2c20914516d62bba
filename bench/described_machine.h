// What a report must say of the machine that it was measured on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace::bench {

// Label and value: processor, memory, kernel, huge pages, and the file system
// and drive behind each folder. What cannot be found out says so.
std::vector<std::pair<std::string, std::string>> DescribeMachine(
    const std::vector<std::string>& folders);

}  // namespace terrace::bench
