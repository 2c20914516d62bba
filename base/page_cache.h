// What transfers of a file that is not open for direct I/O leave behind: their
// bytes, once more, in the page cache. State that is larger than memory would
// push everything else out of it. Thread-safe, stateless.
#pragma once

#include <cstdint>

namespace terrace {

// Whether transfers of the file pass through the page cache, and could do
// without: on tmpfs the pages are the file.
bool LeavesPages(int fd);

// Reads no more ahead of them: nothing would drop that.
void ReadOnlyWhatIsAsked(int fd);

// Drops what the pages of this range hold; what was written there goes to the
// device before, which is waited for. Best effort, so 0, but for an errno by
// which a device did not take what was written. The kernel tells such an error
// once for each open file, to the first that asks: of several at work in one
// file it may be another one that gets it, and the one whose bytes were lost 0.
// What those bytes are then is for their reader to find out, by a checksum.
int DropWritten(int fd, int64_t offset, int64_t size_bytes);
// The same where nothing was written.
void DropRead(int fd, int64_t offset, int64_t size_bytes);

// Whether that errno of a write-back means that bytes were lost.
bool LosesBytes(int error);

}  // namespace terrace
