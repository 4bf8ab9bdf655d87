//! The error codes and variables that `explain` knows.

use cnimble_cni::Code;

/// The error codes of the specification and of these plugins: the code, its meaning, and what to do.
pub(super) const CODES: &[(Code, &str, &str)] = &[
    (
        Code::INCOMPATIBLE_VERSION,
        "the configuration's or a result's CNI version isn't supported",
        "`cnimble plugins` lists the versions of each plugin; write one of them as cniVersion, and nothing newer into \
         cniVersions",
    ),
    (
        Code::UNSUPPORTED_FIELD,
        "a field of the configuration isn't supported; the message has key and value",
        "remove the key, or install a plugin that has it; `cnimble explain KEY` tells what it is",
    ),
    (
        Code::UNKNOWN_CONTAINER,
        "the container is unknown or doesn't exist; the runtime need not clean up",
        "nothing is left to do",
    ),
    (
        Code::INVALID_ENVIRONMENT,
        "an environment variable is missing or invalid; the message names it",
        "it comes from the runtime: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS, CNI_PATH",
    ),
    (
        Code::IO,
        "reading or writing failed: stdin, a lease file, a socket",
        "look at the path in the message: is the disk full, the directory writable?",
    ),
    (
        Code::DECODE,
        "bytes that should decode did not: the JSON of a configuration or a result",
        "`cnimble validate --strict FILE` tells the line",
    ),
    (
        Code::INVALID_CONFIG,
        "the configuration decodes but makes no sense; the message begins with the key",
        "`cnimble validate --strict NETWORK` finds every fault, `cnimble explain KEY` tells what a key takes",
    ),
    (
        Code::INVALID_NETNS,
        "the network namespace is wrong, for example the plugin's own",
        "the namespace has to be the pod's",
    ),
    (Code::TRY_AGAIN_LATER, "a passing condition", "the runtime tries again later"),
    (
        Code::NOT_AVAILABLE,
        "STATUS: the plugin can't serve ADD now",
        "the message says what is missing; running pods are not concerned",
    ),
    (
        Code::LIMITED_CONNECTIVITY,
        "STATUS: the plugin can't serve ADD now, and running pods may have limited connectivity",
        "the message says what is missing",
    ),
    (
        Code::KERNEL,
        "the kernel refused a request; the message has the object and the kernel's error",
        "EPERM takes root and CAP_NET_ADMIN; EOPNOTSUPP is a kernel without the module",
    ),
    (
        Code::NO_ADDRESS,
        "no address can be given: the range is full, or a requested one is taken",
        "`cnimble doctor` lists leases of removed pods, and --repair frees them",
    ),
    (
        Code::CONFLICT,
        "something that exists stands in the way: a link of that name, another address",
        "`cnimble tree` shows what is there",
    ),
    (
        Code::CHECK_FAILED,
        "CHECK: the state of the host is not what ADD left",
        "`cnimble doctor` finds lost packet rules; otherwise `cnimble del` and `cnimble add`",
    ),
    (
        Code::DELEGATE,
        "a delegate, usually the IPAM plugin, could not be run, gave no address, or gave an answer that is not understood",
        "the message says which: `cnimble plugins` lists what is installed; `static` without `ipam.addresses` gives \
         an address only by IP in CNI_ARGS, or by the capability ips",
    ),
    (
        Code::INTERNAL,
        "anything unclassified: what the Go plugins give for most errors, or a defect of the plugin",
        "the message says more",
    ),
];

/// The variables that a runtime sets for a plugin (specification 1.1.0, section 2 "Parameters").
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("CNI_COMMAND", "The verb: ADD, DEL, CHECK, GC, STATUS or VERSION."),
    ("CNI_CONTAINERID", "The container's ID, which with CNI_IFNAME names the attachment."),
    ("CNI_NETNS", "The path of the container's network namespace."),
    ("CNI_IFNAME", "The name of the interface in the container."),
    (
        "CNI_ARGS",
        "Arguments for one container, as KEY=VALUE with a semicolon between them: IP asks host-local for an address and \
         gives static one, GATEWAY gives static a gateway, MAC sets the interface's hardware address, and with \
         IgnoreUnknown=1 unknown keys are accepted.",
    ),
    ("CNI_PATH", "The directories of plugins, with a colon between them."),
];
