#include "bench/io/ring_workers.h"

#include <dirent.h>

#include <fstream>
#include <string>

namespace terrace {

int CountRingWorkers() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return 0;
  int workers = 0;
  while (const dirent* entry = readdir(threads)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name +
                       "/comm");
    std::string name;
    std::getline(file, name);
    if (name.rfind("iou-wrk", 0) == 0) ++workers;
  }
  closedir(threads);
  return workers;
}

}  // namespace terrace
