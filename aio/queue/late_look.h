// How many bytes wait to be looked for: what a look at a path finds answered
// beyond one piece of each direction. That is nothing unless the thread that
// looks comes late, as on a machine whose processors have other work. The
// device had that much less to do when it came.
//
// The mean over looks, each weighted by its bytes. One thread at a time.
#pragma once

#include <cstdint>

namespace terrace {

class LateLook {
 public:
  void OnAnswer(int64_t bytes, bool is_read) {
    found_bytes_ += bytes;
    if (has_first_[is_read ? 1 : 0]) beyond_bytes_ += bytes;
    has_first_[is_read ? 1 : 0] = true;
  }
  void EndLook() {
    bytes_ += static_cast<double>(found_bytes_);
    weighted_ +=
        static_cast<double>(found_bytes_) * static_cast<double>(beyond_bytes_);
    found_bytes_ = 0;
    beyond_bytes_ = 0;
    has_first_[0] = false;
    has_first_[1] = false;
  }
  void Forget() {
    bytes_ = 0;
    weighted_ = 0;
  }

  // Of the looks that ended since Forget.
  double mean_bytes() const { return bytes_ > 0 ? weighted_ / bytes_ : 0; }

 private:
  // Of this look.
  int64_t found_bytes_ = 0;
  int64_t beyond_bytes_ = 0;
  bool has_first_[2] = {};  // of writes, of reads

  double bytes_ = 0;
  double weighted_ = 0;
};

}  // namespace terrace
