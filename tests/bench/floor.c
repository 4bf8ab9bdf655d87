/*
 * The floor: a pod's network with the fewest messages to the kernel, from a static program
 * without any library but libc. What a plugin takes beyond this is its own.
 *
 *   floor setup BRIDGE ADDRESS/PREFIX...                makes the bridge, once
 *   floor add NETNS BRIDGE-INDEX HOST-NAME (ADDRESS/PREFIX GATEWAY)...
 *   floor del HOST-NAME
 *
 * add: one message makes both ends, with names, the pod's MAC, the bridge as master, and the
 * host's end up; the pod's end gets index 2, so that nobody has to ask for it. Then one
 * datagram in the pod: addresses, up, default routes. No lease is taken, nothing is checked,
 * nobody waits for the link. Prints the nanoseconds between sending and being answered: the
 * kernel's own share. `setup` prints the bridge's index.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define POD_INDEX 2

static char buffer[8192];
static size_t used;
static struct nlmsghdr *message;
static long long kernel_ns;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *append(size_t length)
{
	void *at = buffer + used;
	used += NLMSG_ALIGN(length);
	if (used > sizeof buffer)
		exit(2);
	if (message)
		message->nlmsg_len = (char *)buffer + used - (char *)message;
	return at;
}

static void *begin(int type, int flags, size_t body)
{
	message = NULL;
	struct nlmsghdr *header = append(NLMSG_HDRLEN);
	message = header;
	header->nlmsg_type = type;
	header->nlmsg_flags = NLM_F_REQUEST | flags;
	void *at = append(body);
	return at;
}

static struct rtattr *put(int type, const void *data, size_t length)
{
	struct rtattr *attribute = append(RTA_LENGTH(length));
	attribute->rta_type = type;
	attribute->rta_len = RTA_LENGTH(length);
	if (length)
		memcpy(RTA_DATA(attribute), data, length);
	return attribute;
}

static void close_nest(struct rtattr *nest)
{
	nest->rta_len = buffer + used - (char *)nest;
}

static int open_socket(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		die("socket");
	return fd;
}

/* Sends what was put together; the last message asks for an answer, the others only answer
 * if they fail. */
static void transact(int fd, const char *what)
{
	char answer[8192];
	struct timespec before, after;
	message->nlmsg_flags |= NLM_F_ACK;
	clock_gettime(CLOCK_MONOTONIC, &before);
	if (send(fd, buffer, used, 0) < 0)
		die(what);
	ssize_t length = recv(fd, answer, sizeof answer, 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	struct nlmsghdr *header = (struct nlmsghdr *)answer;
	if (length < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) || header->nlmsg_type != NLMSG_ERROR)
		die("answer");
	int error = -((struct nlmsgerr *)NLMSG_DATA(header))->error;
	if (error) {
		fprintf(stderr, "%s: %s\n", what, strerror(error));
		exit(1);
	}
	kernel_ns += (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
	memset(buffer, 0, used);
	used = 0;
}

static int family_of(const char *text)
{
	return strchr(text, ':') ? AF_INET6 : AF_INET;
}

static size_t parse(const char *text, void *address)
{
	int family = family_of(text);
	if (inet_pton(family, text, address) != 1) {
		fprintf(stderr, "%s is no address\n", text);
		exit(2);
	}
	return family == AF_INET6 ? 16 : 4;
}

static void put_address(unsigned index, char *text)
{
	unsigned char address[16];
	char *slash = strchr(text, '/');
	if (!slash)
		exit(2);
	*slash = 0;
	size_t length = parse(text, address);
	struct ifaddrmsg *body = begin(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof *body);
	body->ifa_family = family_of(text);
	body->ifa_prefixlen = atoi(slash + 1);
	body->ifa_flags = body->ifa_family == AF_INET6 ? IFA_F_NODAD : 0;
	body->ifa_index = index;
	put(IFA_LOCAL, address, length);
	put(IFA_ADDRESS, address, length);
}

static void put_up(unsigned index)
{
	struct ifinfomsg *body = begin(RTM_NEWLINK, 0, sizeof *body);
	body->ifi_index = index;
	body->ifi_flags = body->ifi_change = IFF_UP;
}

static void put_default_route(unsigned index, const char *gateway)
{
	unsigned char address[16];
	size_t length = parse(gateway, address);
	struct rtmsg *body = begin(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, sizeof *body);
	body->rtm_family = family_of(gateway);
	body->rtm_table = RT_TABLE_MAIN;
	body->rtm_protocol = RTPROT_BOOT;
	body->rtm_scope = RT_SCOPE_UNIVERSE;
	body->rtm_type = RTN_UNICAST;
	put(RTA_GATEWAY, address, length);
	put(RTA_OIF, &index, sizeof index);
}

static void setup(int argc, char **argv)
{
	int fd = open_socket();
	struct ifinfomsg *body = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof *body);
	body->ifi_flags = body->ifi_change = IFF_UP;
	put(IFLA_IFNAME, argv[0], strlen(argv[0]) + 1);
	/* A MAC of its own, so that it doesn't follow the ports'. */
	unsigned char mac[6] = {0x02, 0, 0, 0, 0, 1};
	put(IFLA_ADDRESS, mac, sizeof mac);
	struct rtattr *info = put(IFLA_LINKINFO, NULL, 0);
	put(IFLA_INFO_KIND, "bridge", sizeof "bridge");
	close_nest(info);
	transact(fd, "make the bridge");
	unsigned index = if_nametoindex(argv[0]);
	for (int i = 1; i < argc; i++)
		put_address(index, argv[i]);
	transact(fd, "give the bridge its addresses");
	printf("%u\n", index);
}

static void add(int argc, char **argv)
{
	int netns = open(argv[0], O_RDONLY | O_CLOEXEC);
	if (netns < 0)
		die(argv[0]);
	unsigned master = atoi(argv[1]), one = 1;
	unsigned char mac[6];
	if (getrandom(mac, sizeof mac, 0) != sizeof mac)
		die("getrandom");
	mac[0] = (mac[0] & 0xfe) | 2;

	int host = open_socket();
	struct ifinfomsg *body = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, sizeof *body);
	body->ifi_flags = body->ifi_change = IFF_UP;
	put(IFLA_IFNAME, argv[2], strlen(argv[2]) + 1);
	put(IFLA_MASTER, &master, sizeof master);
	put(IFLA_NUM_TX_QUEUES, &one, sizeof one);
	put(IFLA_NUM_RX_QUEUES, &one, sizeof one);
	struct rtattr *info = put(IFLA_LINKINFO, NULL, 0);
	put(IFLA_INFO_KIND, "veth", sizeof "veth");
	struct rtattr *data = put(IFLA_INFO_DATA, NULL, 0);
	struct rtattr *peer = put(VETH_INFO_PEER, NULL, 0);
	body = append(sizeof *body);
	body->ifi_index = POD_INDEX;
	put(IFLA_IFNAME, "eth0", sizeof "eth0");
	put(IFLA_ADDRESS, mac, sizeof mac);
	put(IFLA_NET_NS_FD, &netns, sizeof netns);
	put(IFLA_NUM_TX_QUEUES, &one, sizeof one);
	put(IFLA_NUM_RX_QUEUES, &one, sizeof one);
	close_nest(peer);
	close_nest(data);
	close_nest(info);
	transact(host, "make the veth pair");

	if (setns(netns, CLONE_NEWNET))
		die("setns");
	int pod = open_socket();
	for (int i = 3; i + 1 < argc; i += 2)
		put_address(POD_INDEX, argv[i]);
	put_up(POD_INDEX);
	for (int i = 3; i + 1 < argc; i += 2)
		put_default_route(POD_INDEX, argv[i + 1]);
	transact(pod, "configure the pod");
	printf("%lld\n", kernel_ns);
}

static void del(char **argv)
{
	int fd = open_socket();
	begin(RTM_DELLINK, 0, sizeof(struct ifinfomsg));
	put(IFLA_IFNAME, argv[0], strlen(argv[0]) + 1);
	transact(fd, "remove the veth pair");
	printf("%lld\n", kernel_ns);
}

int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "setup"))
		setup(argc - 2, argv + 2);
	else if (argc >= 7 && !strcmp(argv[1], "add"))
		add(argc - 2, argv + 2);
	else if (argc == 3 && !strcmp(argv[1], "del"))
		del(argv + 2);
	else {
		fprintf(stderr, "see the comment in floor.c\n");
		return 2;
	}
	return 0;
}
