// What starts, watches and restarts the daemon, by systemd's protocol: sockets
// that it was started with, and words about how it is. Without one, nothing is
// inherited and nobody is told.
//
// The object belongs to one thread, but for the store of descriptors; it reads
// the environment once, at its beginning, and takes from there what children
// are not to have.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/jobs/image/descriptor_store.h"

namespace terrace {

class ServiceManager final : public DescriptorStore {
 public:
  struct Inherited {
    std::string name;  // of the unit's FileDescriptorName=
    OwnDescriptor descriptor;
  };

  // InvalidArgument: what it says of its sockets makes no sense.
  static absl::StatusOr<ServiceManager> OfEnvironment();

  std::vector<Inherited> TakeInherited() { return std::move(inherited_); }

  // A service manager that does not listen is not waited for: a word may be
  // lost.
  void TellReady(const std::string& status) const;
  void TellReloading() const;
  // It may take so long until the end.
  void TellStopping(const std::string& status, absl::Duration most) const;
  void TellAlive() const;

  // Whether it keeps descriptors beyond the process: FDSTORE in the environment
  // is how many.
  bool keeps() const { return keeps_; }
  bool Keep(const std::string& name, const OwnDescriptor& file) override;
  void Drop(const std::string& name) override;

  // How long the daemon may be silent before it is killed; infinite: nobody
  // counts.
  absl::Duration patience() const { return patience_; }

 private:
  // False: it is not told. `file`: goes beside the words; null: nothing does.
  bool Tell(const std::string& words,
            const OwnDescriptor* file = nullptr) const;

  std::string address_;  // of NOTIFY_SOCKET; "": nobody is told
  bool keeps_ = false;
  std::vector<Inherited> inherited_;
  absl::Duration patience_ = absl::InfiniteDuration();
};

}  // namespace terrace
