// A file system in memory whose reads and writes fail as they are told to:
//
//   fuse_fault_server MOUNT-POINT
//
// Speaks the kernel's FUSE protocol itself, so that the tests need no library
// for it; mounts by mount(2), so it needs root and /dev/fuse. Prints "mounted"
// or "refused: <why>", then answers the lines of fuse_script.h, one each. Ends
// with its standard input. Stopped by a signal, it answers nothing; killed, all
// that the kernel asked it fails with ENOTCONN or ECONNABORTED.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fuse/fuse_files.h"
#include "tests/support/fuse/fuse_script.h"

namespace terrace {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;  // of one request's data
constexpr uint32_t kMostPages = kMostBytes / 4096;
constexpr int kThreads = 12;  // a call held or delayed holds up no other

class FuseServer {
 public:
  explicit FuseServer(int device) : device_(device) {}

  FuseScript& script() { return script_; }

  // Until the file system is gone.
  void Serve() {
    std::vector<char> buffer(kMostBytes + 4096);
    while (true) {
      const ssize_t size = read(device_, buffer.data(), buffer.size());
      if (size < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
        continue;
      }
      if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header header;
      std::memcpy(&header, buffer.data(), sizeof(header));
      Handle(header, buffer.data() + sizeof(header));
    }
  }

 private:
  void Reply(const fuse_in_header& to, int error, const void* data = nullptr,
             size_t size = 0) {
    fuse_out_header header = {};
    header.unique = to.unique;
    header.error = -error;
    if (error != 0) size = 0;
    header.len = static_cast<uint32_t>(sizeof(header) + size);
    const iovec parts[] = {{&header, sizeof(header)},
                           {const_cast<void*>(data), size}};
    // ENOENT: the caller was interrupted, or the file system is gone.
    [[maybe_unused]] const ssize_t told = writev(device_, parts, 2);
  }
  template <typename T>
  void ReplyWith(const fuse_in_header& to, const T& body) {
    Reply(to, 0, &body, sizeof(body));
  }
  template <typename T>
  static T As(const char* body) {
    T value;
    std::memcpy(&value, body, sizeof(value));
    return value;
  }

  void Handle(const fuse_in_header& header, const char* body) {
    switch (header.opcode) {
      case FUSE_INIT:
        return Begin(header, As<fuse_init_in>(body));
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;  // want no answer
      case FUSE_READ:
        return Read(header, As<fuse_read_in>(body));
      case FUSE_WRITE:
        return Write(header, As<fuse_write_in>(body),
                     body + sizeof(fuse_write_in));
      case FUSE_FALLOCATE:
        return Grow(header, As<fuse_fallocate_in>(body));
      case FUSE_READDIR: {
        const auto asked = As<fuse_read_in>(body);
        const std::vector<char> list =
            files_.List(header.nodeid, asked.offset, asked.size);
        return Reply(header, 0, list.data(), list.size());
      }
      default:
        return HandleName(header, body);
    }
  }

  // What names, opens and describes.
  void HandleName(const fuse_in_header& header, const char* body) {
    switch (header.opcode) {
      case FUSE_LOOKUP: {
        uint64_t node = 0;
        const int error = files_.Look(header.nodeid, body, &node);
        if (error != 0) return Reply(header, error);
        return ReplyWith(header, EntryOf(node));
      }
      case FUSE_GETATTR:
        return ReplyWith(header, AttributesOf(header.nodeid));
      case FUSE_SETATTR: {
        const auto asked = As<fuse_setattr_in>(body);
        if ((asked.valid & FATTR_SIZE) != 0) {
          files_.Resize(header.nodeid, asked.size);
        }
        return ReplyWith(header, AttributesOf(header.nodeid));
      }
      case FUSE_MKDIR:
        return Make(header, S_IFDIR | As<fuse_mkdir_in>(body).mode, 0,
                    body + sizeof(fuse_mkdir_in));
      case FUSE_CREATE: {
        const auto asked = As<fuse_create_in>(body);
        return Make(header, asked.mode, asked.flags,
                    body + sizeof(fuse_create_in));
      }
      case FUSE_UNLINK:
      case FUSE_RMDIR:
        return Remove(header, body);
      case FUSE_RENAME: {
        const char* const name = body + sizeof(fuse_rename_in);
        return Reply(header, files_.Rename(header.nodeid, name,
                                           As<fuse_rename_in>(body).newdir,
                                           name + std::strlen(name) + 1));
      }
      case FUSE_OPEN:
      case FUSE_OPENDIR:
        return ReplyWith(header,
                         Opened(header.nodeid, As<fuse_open_in>(body).flags));
      case FUSE_STATFS: {
        fuse_statfs_out out = {};
        out.st.bsize = 4096;
        out.st.frsize = 4096;
        out.st.namelen = 255;
        out.st.blocks = out.st.bfree = out.st.bavail = 1 << 18;
        return ReplyWith(header, out);
      }
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_FLUSH:
      case FUSE_FSYNC:
      case FUSE_FSYNCDIR:
      case FUSE_ACCESS:
        return Reply(header, 0);
      default:
        return Reply(header, ENOSYS);
    }
  }

  void Begin(const fuse_in_header& header, const fuse_init_in& asked) {
    fuse_init_out out = {};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = FUSE_KERNEL_MINOR_VERSION;
    // None: after a short direct read the kernel goes on through its cache, and
    // what that read ahead would be stale once a direct write has passed it.
    out.max_readahead = 0;
    // Without FUSE_ASYNC_DIO, which makes EIO of every short write.
    out.flags =
        asked.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES);
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_write = kMostBytes;
    out.max_pages = kMostPages;
    out.time_gran = 1;
    ReplyWith(header, out);
  }

  // Nothing of it may be cached, names and sizes included.
  fuse_entry_out EntryOf(uint64_t node) {
    fuse_entry_out out = {};
    out.nodeid = node;
    out.attr = files_.Attributes(node);
    return out;
  }
  fuse_attr_out AttributesOf(uint64_t node) {
    fuse_attr_out out = {};
    out.attr = files_.Attributes(node);
    return out;
  }
  // Buffered ones bypass the cache as well, but for "*.cached", which can be
  // mapped. Those that ask for direct I/O get it without this flag, which a
  // kernel (6.18) takes to go on after a short answer to io_uring from the
  // place where the request began.
  fuse_open_out Opened(uint64_t node, uint32_t flags) {
    fuse_open_out out = {};
    const bool cached = (flags & O_DIRECT) != 0 || files_.IsCached(node);
    out.open_flags = cached ? 0 : FOPEN_DIRECT_IO;
    return out;
  }

  void Make(const fuse_in_header& header, uint32_t mode, uint32_t flags,
            const char* name) {
    uint64_t node = 0;
    const int error = files_.Make(header.nodeid, name, mode, &node);
    if (error != 0) return Reply(header, error);
    if (S_ISDIR(mode)) return ReplyWith(header, EntryOf(node));
    const struct {
      fuse_entry_out entry;
      fuse_open_out open;
    } made = {EntryOf(node), Opened(node, flags)};
    ReplyWith(header, made);
  }

  void Remove(const fuse_in_header& header, const char* name) {
    const FuseFault fault = script_.Next(FuseCall::kRemove);
    if (fault.kind == FuseFault::Kind::kError) {
      return Reply(header, static_cast<int>(fault.value));
    }
    const bool folder = header.opcode == FUSE_RMDIR;
    Reply(header, files_.Remove(header.nodeid, name, folder));
  }

  void Read(const fuse_in_header& header, const fuse_read_in& asked) {
    const FuseFault fault = script_.Next(FuseCall::kRead);
    if (fault.kind == FuseFault::Kind::kError) {
      return Reply(header, static_cast<int>(fault.value));
    }
    std::vector<char> bytes =
        files_.Read(header.nodeid, asked.offset, asked.size);
    if (fault.kind == FuseFault::Kind::kShort) {
      bytes.resize(std::min(bytes.size(), static_cast<size_t>(fault.value)));
    }
    Reply(header, 0, bytes.data(), bytes.size());
  }

  void Write(const fuse_in_header& header, const fuse_write_in& asked,
             const char* data) {
    const FuseFault fault = script_.Next(FuseCall::kWrite);
    if (fault.kind == FuseFault::Kind::kError) {
      return Reply(header, static_cast<int>(fault.value));
    }
    fuse_write_out out = {};
    out.size = asked.size;
    if (fault.kind == FuseFault::Kind::kShort) {
      out.size = std::min(asked.size, static_cast<uint32_t>(fault.value));
    }
    files_.Write(header.nodeid, asked.offset, data, out.size);
    ReplyWith(header, out);
  }

  void Grow(const fuse_in_header& header, const fuse_fallocate_in& asked) {
    const FuseFault fault = script_.Next(FuseCall::kGrow);
    if (fault.kind == FuseFault::Kind::kError) {
      return Reply(header, static_cast<int>(fault.value));
    }
    files_.GrowTo(header.nodeid, asked.offset + asked.length);
    Reply(header, 0);
  }

  const int device_;
  FuseFiles files_;
  FuseScript script_;
};

int Refuse(const char* what) {
  std::printf("refused: %s: %s\n", what, std::strerror(errno));
  return 1;
}

int Run(const char* mount_point) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return Refuse("/dev/fuse");
  const std::string options =
      "fd=" + std::to_string(device) +
      ",rootmode=40000,user_id=0,group_id=0,allow_other";
  if (mount("terrace-faults", mount_point, "fuse", MS_NOSUID | MS_NODEV,
            options.c_str()) != 0) {
    return Refuse("mount");
  }
  FuseServer server(device);
  for (int i = 0; i < kThreads; ++i) {
    std::thread([&server] { server.Serve(); }).detach();
  }
  std::printf("mounted\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("%s\n", server.script().Obey(line).c_str());
    std::fflush(stdout);
  }
  umount2(mount_point, MNT_DETACH);
  std::_Exit(0);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuse_fault_server MOUNT-POINT\n");
    return 2;
  }
  return terrace::Run(argv[1]);
}
