#include "checkpoint/save/file_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr absl::string_view kFirstLine = "terrace: the files of a save\n";
constexpr absl::string_view kOwner = "owner ";
// A hundred thousand files and more, each of some 45 bytes.
constexpr int64_t kLongestList = int64_t{8} << 20;

absl::Status Foreign(const std::string& path, absl::string_view why) {
  return WithIoFault(
      absl::FailedPreconditionError(absl::StrCat(
          path, ": ", why,
          ", and not what a save lists its files in: move it away, or save to "
          "another directory")),
      {.path = path});
}

// "owner <pid> <host>".
bool ParseOwner(absl::string_view line, FileList::Listed* listed) {
  if (!absl::ConsumePrefix(&line, kOwner)) return false;
  const size_t space = line.find(' ');
  if (space == absl::string_view::npos) return false;
  listed->pid = std::string(line.substr(0, space));
  listed->host = Host::Parse(line.substr(space + 1));
  return listed->host.has_value();
}

absl::StatusOr<FileList::Listed> Parse(const std::string& path,
                                       absl::string_view text) {
  FileList::Listed listed;
  // The beginning of one, where bytes that a power loss kept from the disk may
  // be zeros.
  if (absl::StartsWith(kFirstLine, text) ||
      text.find_first_not_of('\0') == absl::string_view::npos) {
    return listed;
  }
  if (!absl::ConsumePrefix(&text, kFirstLine)) {
    return Foreign(path, "is another program's");
  }
  text = text.substr(0, text.find('\0'));
  for (size_t end = text.find('\n'); end != absl::string_view::npos;
       end = text.find('\n')) {
    const absl::string_view line = text.substr(0, end);
    if (listed.host) {
      if (!IsSaveFileName(line)) {
        return Foreign(path, "has a line that names no file of a checkpoint");
      }
      listed.files.emplace_back(line);
    } else if (!ParseOwner(line, &listed)) {
      return Foreign(path, "does not say whose it is");
    }
    text.remove_prefix(end + 1);
  }
  return listed;
}

}  // namespace

std::string FileList::Listed::Owner() const {
  return host ? absl::StrCat("process ", pid, " on ", host->name)
              : "a process that had not written its name";
}

absl::StatusOr<FileList> FileList::Create(const File& directory,
                                          const std::string& name,
                                          absl::Span<const std::string> files) {
  TERRACE_ASSIGN_OR_RETURN(
      File file, File::Create(directory.fd(), directory.path(), name));
  FileList list(std::move(file));
  absl::Status status = list.Append(absl::StrCat(
      kFirstLine, kOwner, getpid(), " ", Host::Current().Text(), "\n"));
  if (status.ok()) status = list.Add(files);
  if (status.ok()) status = directory.Flush();
  if (status.ok()) return list;
  unlinkat(directory.fd(), name.c_str(), 0);
  return status;
}

absl::Status FileList::Add(absl::Span<const std::string> files) {
  std::string lines;
  for (const std::string& name : files) absl::StrAppend(&lines, name, "\n");
  if (size_bytes_ + static_cast<int64_t>(lines.size()) > kLongestList) {
    return WithIoFault(
        absl::FailedPreconditionError(absl::StrCat(
            file_.path(), ": has ", size_bytes_, " bytes, ", files.size(),
            " files more take ", lines.size(), ", and a save lists at most ",
            kLongestList)),
        {.path = file_.path()});
  }
  TERRACE_RETURN_IF_ERROR(Append(lines));
  return file_.Flush();
}

absl::Status FileList::Append(absl::string_view lines) {
  TERRACE_RETURN_IF_ERROR(file_.Write(
      size_bytes_,
      {reinterpret_cast<const std::byte*>(lines.data()), lines.size()}));
  size_bytes_ += static_cast<int64_t>(lines.size());
  return absl::OkStatus();
}

absl::StatusOr<FileList::Listed> FileList::Read(const File& directory,
                                                const std::string& name) {
  const std::string path = absl::StrCat(directory.path(), "/", name);
  struct stat found = {};
  if (fstatat(directory.fd(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError(path, "cannot be looked for", errno);
  }
  if (!S_ISREG(found.st_mode)) return Foreign(path, "is no file");
  if (found.st_size > kLongestList) return Foreign(path, "is too long");
  TERRACE_ASSIGN_OR_RETURN(const File file, File::OpenToRead(directory, name));
  std::string text(static_cast<size_t>(found.st_size), '\0');
  TERRACE_RETURN_IF_ERROR(
      file.Read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  return Parse(path, text);
}

}  // namespace terrace
